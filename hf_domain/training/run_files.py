"""Names of the files in a run's folder, beside those of predictions."""

# Written by Trainer.
METRICS, STATE = "all_results.json", "trainer_state.json"
# The held-out loss before the first step. It stays beside the model: a run that is killed while it ends, and resumed,
# cannot measure it again for its card.
START_RESULTS = "start_results.json"
