"""View ``whole``: every worker runs the script on whole batches; calls of models are shared out."""
