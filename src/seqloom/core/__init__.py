"""The base of all layers: cells, jobs, weights, checks and errors. Imports nothing else of the package."""
