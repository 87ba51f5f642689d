"""From logits to tokens: penalties, distributions, acceptance of drafts. Tensors only; nothing is read back."""
