"""Look inside a trained model: what it predicts, why, and what happens in its states, gates and attention."""
