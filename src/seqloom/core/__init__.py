"""What every layer builds on: the Cell contract, scan jobs, weights, checks and errors. Imports no other folder."""
