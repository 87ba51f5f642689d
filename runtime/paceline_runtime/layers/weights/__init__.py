"""Ways of storing a matrix. `base` says what each of them can do; every way has a file of its own."""
