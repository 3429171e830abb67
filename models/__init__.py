"""Models: one file each, written as the paper's equation."""

from sarlite.models.appnp import APPNP
from sarlite.models.gat import GAT, GATConv
from sarlite.models.gatv2 import GATv2Conv
from sarlite.models.gcn import GCN, GCNConv
from sarlite.models.rgat import RGAT, RGATConv
from sarlite.models.rgcn import RGCN, RGCNConv
from sarlite.models.sage import SAGE, SAGEConv
from sarlite.models.sgc import SGC
from sarlite.models.sign import SIGN

MODELS = {"gcn": GCN, "sage": SAGE, "gat": GAT, "appnp": APPNP, "sgc": SGC, "sign": SIGN}
RELATIONAL = {"rgcn": RGCN, "rgat": RGAT}

__all__ = ["APPNP", "GAT", "GATConv", "GATv2Conv", "GCN", "GCNConv", "MODELS", "RELATIONAL", "RGAT", "RGATConv", "RGCN", "RGCNConv", "SAGE",
           "SAGEConv", "SGC", "SIGN"]
