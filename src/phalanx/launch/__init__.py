"""How a run starts, is watched and ends. Uses core, pool, plan, observe, agent and arenas."""
