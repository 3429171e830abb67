"""Models: one file each, written as the paper's equation."""

from sarlite.models.appnp import APPNP
from sarlite.models.gat import GAT, GATConv
from sarlite.models.gat_forms import EdgeGATConv, PaperGATConv
from sarlite.models.gatv2 import GATv2, GATv2Conv
from sarlite.models.gcn import GCN, GCNConv
from sarlite.models.gcnii import GCNII
from sarlite.models.gin import GIN, GINConv
from sarlite.models.pna import PNA, PNAConv
from sarlite.models.rgat import RGAT, RGATConv
from sarlite.models.rgcn import RGCN, RGCNConv
from sarlite.models.sage import SAGE, SAGEConv
from sarlite.models.sgc import SGC
from sarlite.models.sign import SIGN

MODELS = {"gcn": GCN, "sage": SAGE, "gat": GAT, "gatv2": GATv2, "gin": GIN, "gcnii": GCNII, "pna": PNA, "appnp": APPNP,
          "sgc": SGC, "sign": SIGN}
RELATIONAL = {"rgcn": RGCN, "rgat": RGAT}

__all__ = ["APPNP", "EdgeGATConv", "GAT", "GATConv", "GATv2", "GATv2Conv", "GCN", "GCNConv", "GCNII", "GIN", "GINConv", "MODELS",
           "PNA", "PNAConv", "PaperGATConv", "RELATIONAL", "RGAT", "RGATConv", "RGCN", "RGCNConv", "SAGE", "SAGEConv", "SGC", "SIGN"]
