"""All ranks in one process, against the model: a report, which a bundle replays."""
