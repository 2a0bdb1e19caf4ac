"""Recipes: reading, inheriting and computing them, the rules over them, and what a shell is given.

read -> resolve -> rules -> render. The upstream frameworks run the training; nothing here imports them.
"""
