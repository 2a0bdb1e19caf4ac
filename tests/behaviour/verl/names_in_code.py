"""Names of metrics as they stand in code: keys of dictionaries, and timers."""

import ast


def keys(node):
    """The texts that a node has as keys of a dictionary."""
    if isinstance(node, ast.Dict):
        return [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return [node.slice.value]
    return []


def timer_of(node):
    """The name of the timer that a node starts, else None."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "marked_timer"
    return node.args[0].value if called and isinstance(node.args[0], ast.Constant) else None


def function(tree, name):
    """The function or method of that name."""
    return next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)
