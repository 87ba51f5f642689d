"""How products of few rows are best cut on a device: which there are, which cuts to try, their times, and the choice."""
