"""The families that are tried, in the order of the table."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.family_models import (
    CLASSES,
    IMAGE,
    VOCABULARY,
    WIDTH,
    Cut,
    Family,
    Lstm,
    UNet,
    captioned_images,
    class_loss,
    described_images,
    images,
    labelled_tokens,
    masked_images,
    own_loss,
    padded_text,
    pretrained,
    replaced_text,
    segmented_images,
    series,
    speech,
    text,
    text_alone,
    transcribed_waves,
    translation,
    waves,
)

_SPECIAL: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LAYERS: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
_TEXT: dict[str, Any] = {
    **_LAYERS,
    **_SPECIAL,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
}
_GROUPED: dict[str, Any] = {**_TEXT, "num_key_value_heads": 1}
_EXPERTS: dict[str, Any] = {
    **_GROUPED,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
_PATCHES: dict[str, Any] = {**_LAYERS, "image_size": IMAGE, "patch_size": 8}
_IMAGES: dict[str, Any] = {**_PATCHES, "num_labels": CLASSES}
_BOTH_SIDES: dict[str, Any] = {
    **_SPECIAL,
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
_GPT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_positions": 32,
    "n_embd": WIDTH,
    "n_layer": 1,
    "n_head": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WAVES: dict[str, Any] = {
    **_LAYERS,
    "vocab_size": 20,
    "conv_dim": [16, 16],
    "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
    "pad_token_id": 0,
}
_TEXT_SIDE: dict[str, Any] = {**_TEXT, "projection_dim": 16}
_IMAGE_SIDE: dict[str, Any] = {**_PATCHES, "projection_dim": 16}
_STAGES: dict[str, Any] = {
    "hidden_sizes": [16, 32],
    "depths": [1, 1],
    "num_labels": CLASSES,
}


def _family(
    name: str,
    model: str,
    batch: Any = text,
    /,
    *,
    expect: int = 1,
    cuts: tuple[Cut, ...] = (),
    fallbacks: int = 0,
    **settings: Any,
) -> Family:
    """Return a family of transformers; its configuration's name follows the model's."""
    stem = (
        re.split("For(?=[A-Z])", model)[0]
        .removesuffix("LMHeadModel")
        .removesuffix("Model")
    )
    build = pretrained(model, f"{stem}Config", **settings)
    return Family(name, build, batch, own_loss, expect, cuts, fallbacks)


FAMILIES: tuple[Family, ...] = (
    # What the goals name.
    _family("bert", "BertForMaskedLM", padded_text, **_TEXT),
    _family(
        "distilbert", "DistilBertForMaskedLM", padded_text, vocab_size=VOCABULARY, dim=WIDTH,
        n_layers=1, n_heads=2, hidden_dim=64, max_position_embeddings=32, pad_token_id=0,
    ),
    _family("gpt2", "GPT2LMHeadModel", **_GPT),
    _family("llama", "LlamaForCausalLM", padded_text, **_GROUPED),
    _family("qwen3", "Qwen3ForCausalLM", **_GROUPED, head_dim=16),
    _family(
        "t5", "T5ForConditionalGeneration", translation, vocab_size=VOCABULARY, d_model=WIDTH,
        d_kv=16, d_ff=64, num_layers=1, num_heads=2, decoder_start_token_id=0,
    ),
    _family("vit", "ViTForImageClassification", images, **_IMAGES),
    _family(
        "resnet", "ResNetForImageClassification", images, embedding_size=16, layer_type="basic",
        **_STAGES,
    ),
    _family("convnext", "ConvNextForImageClassification", images, num_stages=2, **_STAGES),
    _family(
        "clip", "CLIPModel", captioned_images, text_config=_TEXT_SIDE,
        vision_config=_IMAGE_SIDE, projection_dim=16,
    ),
    _family(
        "whisper", "WhisperForConditionalGeneration", speech, **_BOTH_SIDES, num_mel_bins=8,
        max_source_positions=8, max_target_positions=16, decoder_start_token_id=1,
    ),
    _family("wav2vec2", "Wav2Vec2ForCTC", transcribed_waves, **_WAVES),
    _family(
        "mamba", "MambaForCausalLM", **_SPECIAL, vocab_size=VOCABULARY, hidden_size=WIDTH,
        state_size=4, num_hidden_layers=1, expand=2,
    ),
    _family("mixtral", "MixtralForCausalLM", **_EXPERTS),
    Family("lstm", Lstm, labelled_tokens, class_loss),
    Family("unet", UNet, segmented_images, class_loss),
    # More kinds of text models.
    _family("roberta", "RobertaForMaskedLM", padded_text, **_TEXT),
    _family("albert", "AlbertForMaskedLM", **_TEXT, embedding_size=16),
    _family("electra", "ElectraForPreTraining", replaced_text, **_TEXT, embedding_size=16),
    _family(
        "deberta-v2", "DebertaV2ForMaskedLM", **_TEXT, relative_attention=True,
        position_buckets=4, pos_att_type=["p2c", "c2p"], max_relative_positions=8,
    ),
    _family("modernbert", "ModernBertForMaskedLM", **_TEXT, cls_token_id=1, sep_token_id=2),
    _family("longformer", "LongformerForMaskedLM", **_TEXT, attention_window=4),
    _family(
        "funnel", "FunnelForMaskedLM", vocab_size=VOCABULARY, block_sizes=[1, 1],
        d_model=WIDTH, n_head=2, d_head=16, d_inner=64, num_decoder_layers=1,
    ),
    _family(
        "xlnet", "XLNetLMHeadModel", vocab_size=VOCABULARY, d_model=WIDTH, n_layer=1, n_head=2,
        d_inner=64,
    ),
    _family("fnet", "FNetForMaskedLM", text_alone, vocab_size=VOCABULARY, hidden_size=WIDTH,
        num_hidden_layers=1, intermediate_size=64, max_position_embeddings=32),
    _family("convbert", "ConvBertForMaskedLM", **_TEXT, embedding_size=WIDTH, conv_kernel_size=3),
    _family("gpt-neox", "GPTNeoXForCausalLM", **_TEXT),
    _family("bloom", "BloomForCausalLM", padded_text, vocab_size=VOCABULARY, hidden_size=WIDTH,
        n_layer=1, n_head=2),
    _family("mistral", "MistralForCausalLM", **_GROUPED, sliding_window=4),
    _family("gemma2", "Gemma2ForCausalLM", **_GROUPED, head_dim=16, sliding_window=4),
    _family("phi3", "Phi3ForCausalLM", **_GROUPED),
    _family(
        "deepseek-v3", "DeepseekV3ForCausalLM", **_GROUPED, moe_intermediate_size=32,
        n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, first_k_dense_replace=0,
        n_group=2, topk_group=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=16,
    ),
    _family("gpt-oss", "GptOssForCausalLM", **_EXPERTS, head_dim=16, sliding_window=4),
    _family(
        "mamba2", "Mamba2ForCausalLM", **_SPECIAL, vocab_size=VOCABULARY, hidden_size=WIDTH,
        state_size=8, num_hidden_layers=1, num_heads=4, head_dim=16, n_groups=1, chunk_size=4,
    ),
    _family(
        "bart", "BartForConditionalGeneration", translation, **_BOTH_SIDES,
        max_position_embeddings=32, decoder_start_token_id=2, forced_eos_token_id=2,
    ),
    # More kinds of image, sound and series models.
    _family("dinov2", "Dinov2ForImageClassification", images, **_IMAGES),
    _family(
        "swin", "SwinForImageClassification", images, image_size=IMAGE, patch_size=4,
        embed_dim=16, depths=[1, 2], num_heads=[2, 2], window_size=4, num_labels=CLASSES,
    ),
    _family("poolformer", "PoolFormerForImageClassification", images, num_encoder_blocks=2,
        patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1], **_STAGES),
    _family("regnet", "RegNetForImageClassification", images, embedding_size=16, groups_width=16,
        **_STAGES),
    _family(
        "segformer", "SegformerForSemanticSegmentation", segmented_images,
        num_encoder_blocks=2, sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2],
        num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16, **_STAGES,
    ),
    _family(
        "vit-mae", "ViTMAEForPreTraining", masked_images, **_PATCHES, decoder_hidden_size=WIDTH,
        decoder_num_hidden_layers=1, decoder_num_attention_heads=2, decoder_intermediate_size=64,
    ),
    _family(
        "llava", "LlavaForConditionalGeneration", described_images,
        text_config={**_GROUPED, "model_type": "llama"},
        vision_config={**_IMAGE_SIDE, "model_type": "clip_vision_model"},
        image_token_id=VOCABULARY - 1, vision_feature_select_strategy="default",
    ),
    _family("hubert", "HubertForSequenceClassification", waves, **_WAVES, num_labels=CLASSES),
    _family(
        "patchtst", "PatchTSTForPrediction", series, num_input_channels=2, context_length=16,
        prediction_length=4, patch_length=4, patch_stride=4, d_model=WIDTH, num_hidden_layers=1,
        num_attention_heads=2, ffn_dim=64,
    ),
)  # fmt: skip
