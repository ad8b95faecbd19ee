"""A code location to read first: a weekly job whose model call is paid once, whatever happens to its runs."""
