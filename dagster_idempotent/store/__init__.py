"""The only SQL of the library: one function, one statement."""
