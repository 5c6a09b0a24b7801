"""What a training script uses: ``fit``, ``join``, ``Run``, metrics."""
