"""Measurements that anyone can repeat; every figure stands beside its machine and day."""
