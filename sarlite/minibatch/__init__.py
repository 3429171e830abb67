"""Minibatches: sampled in-edges, batches as graphs, and the loader that makes them."""

from sarlite.minibatch.batch import Batch
from sarlite.minibatch.flow import message_flow
from sarlite.minibatch.hec import HEC
from sarlite.minibatch.loader import NeighborLoader
from sarlite.minibatch.rows import RowBatch, RowLoader
from sarlite.minibatch.sampler import Sampler

__all__ = ["HEC", "Batch", "NeighborLoader", "RowBatch", "RowLoader", "Sampler", "message_flow"]
