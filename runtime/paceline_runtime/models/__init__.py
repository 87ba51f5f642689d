"""Target models, one file a family. Public names only."""
