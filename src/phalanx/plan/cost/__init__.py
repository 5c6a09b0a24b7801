"""What a way to train costs: a :class:`Prediction` from measured curves and links."""
