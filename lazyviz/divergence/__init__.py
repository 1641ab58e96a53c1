"""Which of several replicas of a program went another way: from what each of them left behind."""
