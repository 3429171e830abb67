"""Minibatches: sampled in-edges, batches as graphs, and the loader that makes them."""

from sarlite.minibatch.batch import Batch
from sarlite.minibatch.flow import message_flow
from sarlite.minibatch.graph_batches import GraphBatch, GraphLoader
from sarlite.minibatch.hec.halo_cache import HEC
from sarlite.minibatch.loader import NeighborLoader, RowLoader
from sarlite.minibatch.sampler import Sampler
from sarlite.minibatch.temporal import Temporal

__all__ = ["HEC", "Batch", "GraphBatch", "GraphLoader", "NeighborLoader", "RowLoader", "Sampler", "Temporal",
           "message_flow"]
