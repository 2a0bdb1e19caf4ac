"""The checks of `verify`: of a distribution, of its sources, of a workspace; and the generated pages, which it compares or writes."""
