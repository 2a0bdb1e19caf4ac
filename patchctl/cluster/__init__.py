"""Runs verbs over a Ray cluster: asks every node what it has, and finds the odd ones.

    request  -> what is sent to a node: patchctl, the distribution, what it is asked; and what answers are compared with
    fanout   -> the only module that uses Ray: one task pinned to each node, with a time limit
    task     -> runs in the Ray worker; standard library only, pickled by value
    node     -> runs beside the worker, with the patchctl that was sent; returns facts
    compare  -> facts of all nodes -> differences, each with the nodes that have it
    deploy   -> `apply` on every node: look, prepare, and only then write

Never starts or stops a cluster.
"""
