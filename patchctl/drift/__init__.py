"""How a stack's patches fare on other releases of their upstream, and what upstream names they use changed there."""
