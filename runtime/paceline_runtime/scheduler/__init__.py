"""Which request runs next and what it owns: integers and deques, no torch. Public names only."""
