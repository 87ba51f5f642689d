"""`paceline check` and `paceline plan`: arguments, printing and exit codes around the rest of this package."""
