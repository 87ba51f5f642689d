"""Which children a model should have, and what to delete and to apply next. Pure."""
