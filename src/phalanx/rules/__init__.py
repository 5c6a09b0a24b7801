"""Rules that planning, virtual time and training share: admission, batch shares, stragglers, switch
points, cost and choice of collectives, the ledger. Pure, without torch: figures in, decisions out.
"""
