"""The same over a Ray cluster: every node is asked what it holds, and told apart from the others.

    payload  -> what travels to a node: patchctl, the distribution
    request  -> what a node is asked, and what the answers are held against
    fanout   -> the only module that knows Ray: one task pinned to each node, with a time limit
    task     -> what runs in the Ray worker; the standard library only, sent by value
    node     -> what runs beside the worker, with the patchctl that travelled; answers with facts
    compare  -> facts of all nodes -> differences, each with the nodes that have it
    deploy   -> `apply` on every node: looked at, prepared and only then written

No cluster is ever started or stopped here.
"""
