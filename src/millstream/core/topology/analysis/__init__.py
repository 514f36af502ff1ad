"""What a topology allows: which parts threads may run, which call functions in order, and which can be divided."""
