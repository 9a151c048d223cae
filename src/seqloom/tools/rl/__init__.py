"""Recurrent layers in libraries of reinforcement learning."""
