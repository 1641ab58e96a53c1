"""A language model writes text with a key-value cache: transformers' own loop, and one by hand."""

import copy

import pytest
import torch

import lazyrt
from lazyrt.config import config
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start, recorded

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NEW_TOKENS = 6
PROMPT = torch.tensor([[5, 9, 11, 3], [7, 4, 8, 60]])


@pytest.fixture(scope="module")
def model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=64,
            max_position_embeddings=32,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    ).eval()
    made.generation_config.eos_token_id = (
        None  # whether to go on is then known beforehand
    )
    return made


def generate(model, device, **options):
    with config.scoped(compile_tier="fast"):
        copied = copy.deepcopy(model).to(device)
        lazyrt.mark_step()
        lazyrt.reset_counters()
        made = copied.generate(
            PROMPT.to(device), max_new_tokens=NEW_TOKENS, do_sample=False, **options
        )
        return made.cpu()


def noise_of(step):
    """Return the same Gumbel noise on every device, for sampling that can be compared."""
    generator = torch.Generator().manual_seed(step)
    return -torch.log(-torch.log(torch.rand(2, 64, generator=generator)))


def write(model, device, cache, choose):
    """Generate by hand; each token is chosen from the scores and fed back."""
    model = copy.deepcopy(model).to(device)
    lazyrt.mark_step()
    lazyrt.reset_counters()
    ids = PROMPT.to(device)
    tokens = ids
    written = []
    with torch.no_grad():
        for step in range(NEW_TOKENS):
            scores = model(tokens, past_key_values=cache, use_cache=True).logits[:, -1]
            tokens = choose(scores, step)[:, None]
            written.append(tokens)
            lazyrt.mark_step()
    return torch.cat(written, 1).cpu()


def greedy(scores, step):
    return scores.argmax(-1)


def sampled(scores, step):
    return (scores / 0.7 + noise_of(step).to(scores.device)).argmax(-1)


def growing_cache(model):
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def fixed_cache(model):
    from transformers import StaticCache

    return StaticCache(config=model.config, max_cache_len=16)


@pytest.mark.parametrize(
    "options",
    [{}, {"cache_implementation": "static", "disable_compile": True}],
    ids=["growing-cache", "fixed-cache"],
)
def test_a_whole_generate_call_is_one_graph(model, options):
    expected = generate(model, "cpu", **options)
    cold_start()

    with recorded(events.BarrierFinished) as barriers:
        actual = generate(model, DEVICE, **options)
    counters = lazyrt.counters()
    again = generate(model, DEVICE, **options)

    assert torch.equal(actual, expected)
    assert torch.equal(again, expected)
    assert counters["compiles"] == 1
    assert counters["cpu_fallbacks"] == 0
    assert [e.cause for e in barriers if e.executed][-1] == "read by .cpu()"
    assert lazyrt.counters()["compiles"] == 0
    assert lazyrt.counters()["executions"] == 1


def test_a_growing_cache_compiles_once_for_each_length(model):
    expected = write(model, "cpu", growing_cache(model), greedy)
    cold_start()

    with config.scoped(compile_tier="fast"):
        actual = write(model, DEVICE, growing_cache(model), greedy)
        counters = lazyrt.counters()
        again = write(model, DEVICE, growing_cache(model), greedy)
        second = lazyrt.counters()["compiles"]
        write(model, DEVICE, growing_cache(model), greedy)

    assert torch.equal(actual, expected)
    assert torch.equal(again, expected)
    assert second <= 1  # the prompt's: a number in it has been seen to vary since
    assert counters["compiles"] == NEW_TOKENS + 1  # the last one joins the tokens
    assert counters["cpu_fallbacks"] == 0
    assert lazyrt.counters()["compiles"] == 0


def test_a_fixed_cache_compiles_the_prompt_and_the_next_token(model):
    expected = write(model, "cpu", fixed_cache(model), sampled)
    cold_start()

    with config.scoped(compile_tier="fast"):
        actual = write(model, DEVICE, fixed_cache(model), sampled)

    counters = lazyrt.counters()
    assert torch.equal(actual, expected)
    assert counters["executions"] == NEW_TOKENS + 1  # the last one joins the tokens
    assert counters["compiles"] <= 4
    assert counters["cpu_fallbacks"] == 0


def test_sampling_by_multinomial_follows_the_seed(model):
    def draw(seed):
        torch.manual_seed(seed)

        def choose(scores, step):
            return torch.multinomial(scores.softmax(-1), 1)[:, 0]

        with config.scoped(compile_tier="fast"):
            return write(model, DEVICE, fixed_cache(model), choose)

    first, again, other = draw(1), draw(1), draw(2)

    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert lazyrt.counters()["cpu_fallbacks"] == 0


def test_waiting_for_the_end_of_text_reads_once_for_each_token(model):
    ending = copy.deepcopy(model)
    ending.generation_config.eos_token_id = 2
    expected = generate(ending, "cpu")
    cold_start()

    with recorded(events.BarrierFinished) as barriers:
        actual = generate(ending, DEVICE)

    assert torch.equal(actual, expected)
    reads = [e.cause for e in barriers if e.executed and e.cause.startswith("read")]
    assert len(reads) == expected.shape[1] - PROMPT.shape[1]
