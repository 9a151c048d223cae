"""Advice on which models to try: facts about the data, rules, short trials, and a ranking."""
