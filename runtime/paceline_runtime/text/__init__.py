"""From text to token ids and back: tokenizer, chat template, incremental text, stop strings. No torch."""
