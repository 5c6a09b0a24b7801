"""What is trained, in flat memory: layouts, replicas, shared and optimizer state, gradients. Uses
``arena`` alone.
"""
