"""The catalogue that a fresh installation starts with: sizes, images and list prices.

GPU facts are the makers': memory in MiB as the driver reports it. Prices are plausible for 2026 and
are the operator's to change.
"""

from datetime import UTC, datetime
from decimal import Decimal

from django.conf import settings
from django.db import transaction

from portal.billing.models import Price
from portal.instances.models import Flavor, Image

_MIB = 1024**2
_GIB = 1024**3
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)

# code, name, GPU model, count, units of 1000, MiB per GPU or share, vCPU, GiB, GiB disk, per hour
_FLAVORS = (
    ("h100-1", "1 × H100", "H100 SXM 80GB", 1, 1000, 81559, 16, 192, 500, "2.49"),
    ("h100-2", "2 × H100", "H100 SXM 80GB", 2, 1000, 81559, 32, 384, 1000, "4.98"),
    ("h100-8", "8 × H100", "H100 SXM 80GB", 8, 1000, 81559, 128, 1536, 4000, "19.92"),
    ("a100-1", "1 × A100", "A100 SXM 80GB", 1, 1000, 81920, 12, 120, 400, "1.49"),
    ("a100-4", "4 × A100", "A100 SXM 80GB", 4, 1000, 81920, 48, 480, 1600, "5.96"),
    ("l40s-1", "1 × L40S", "L40S 48GB", 1, 1000, 46068, 8, 64, 200, "0.86"),
    ("l40s-quarter", "¼ L40S", "L40S 48GB", 1, 250, 11517, 2, 16, 50, "0.24"),
    ("rtx4090-1", "1 × RTX 4090", "RTX 4090 24GB", 1, 1000, 24564, 6, 48, 150, "0.44"),
    ("rtx4090-half", "½ RTX 4090", "RTX 4090 24GB", 1, 500, 12282, 3, 24, 75, "0.24"),
)
_NOTES = {
    "h100-1": "Training and fast inference; 80 GB HBM3, 3.35 TB/s.",
    "h100-2": "Two on NVLink, for models that need 160 GB.",
    "h100-8": "A whole HGX board for large training runs.",
    "a100-1": "Proven for training; 80 GB HBM2e, 2 TB/s.",
    "a100-4": "Four on NVLink.",
    "l40s-1": "Inference, fine-tuning, rendering; 48 GB GDDR6.",
    "l40s-quarter": "A quarter by time and memory, for notebooks and small models.",
    "rtx4090-1": "Experiments at a low price; 24 GB GDDR6X.",
    "rtx4090-half": "Half by time and memory, for trying things out.",
}
# code, name, reference, command, ports, description
_IMAGES: tuple[tuple[str, str, str, list[str], list[int], str], ...] = (
    ("demo", "Corral demo", "corral/demo:1", [], [],
     "A small training loop that keeps a GPU busy. Built here, needs no download."),
    ("pytorch", "PyTorch 2.5, CUDA 12.4", "docker.io/pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime",
     ["sleep", "infinity"], [], "Python 3.11, PyTorch, cuDNN 9."),
    ("jupyterlab", "JupyterLab with PyTorch", "quay.io/jupyter/pytorch-notebook:cuda12-latest",
     ["start-notebook.py", "--ip=0.0.0.0", "--port=8888"], [8888], "Notebooks on port 8888."),
    ("cuda", "CUDA 12.6 development", "docker.io/nvidia/cuda:12.6.3-devel-ubuntu24.04",
     ["sleep", "infinity"], [], "Compiler and libraries on Ubuntu 24.04."),
    ("rocm", "ROCm with PyTorch", "docker.io/rocm/pytorch:latest",
     ["sleep", "infinity"], [], "For AMD GPUs."),
    ("ubuntu", "Ubuntu 24.04", "docker.io/library/ubuntu:24.04", ["sleep", "infinity"], [],
     "A plain system to build your own on."),
)  # fmt: skip


@transaction.atomic
def stock(*, now: datetime) -> None:
    """Put flavors, images and prices on offer; what exists already stays as it is."""
    for position, row in enumerate(_FLAVORS):
        code, name, model, count, units, mib, cpu, memory, disk, per_hour = row
        Flavor.objects.get_or_create(
            code=code,
            defaults={
                "name": name, "description": _NOTES[code], "gpu_models": [model],
                "gpu_count": count, "units_per_gpu": units, "gpu_memory_bytes": mib * _MIB,
                "cpu_milli": cpu * 1000, "memory_bytes": memory * _GIB, "disk_bytes": disk * _GIB,
                "position": position,
            },
        )  # fmt: skip
        if not Price.objects.filter(sku=code).exists():
            Price.objects.create(
                sku=code, currency=settings.DEFAULT_CURRENCY, per_hour=Decimal(per_hour),
                during=(_BEGAN, None), created_at=now,
            )  # fmt: skip
    for position, (code, name, reference, command, ports, description) in enumerate(_IMAGES):
        Image.objects.get_or_create(
            code=code,
            defaults={
                "name": name, "reference": reference, "command": command, "ports": ports,
                "description": description, "position": position,
            },
        )  # fmt: skip
