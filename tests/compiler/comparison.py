"""A cell to subclass, and what the tests of compiled cells compare: the kernel with the loop."""

import copy
import random
from dataclasses import replace

import torch
from torch import nn

import seqloom
from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.kernels.compiled import kernel


class Base(Cell):
    """A cell with a product; subclasses define `new`, the state after a step."""

    def __init__(self, input_size=3, hidden_size=4):
        super().__init__(input_size, hidden_size)
        self.alpha = 0.5
        self.W, self.U = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(hidden_size)

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        h = self.new(x, state[0])
        return h, (h,)

    def new(self, x, h):
        return self.helper(torch.tanh(x + self.U(h)), h)

    def helper(self, new, h):
        return self.alpha * new + (1 - self.alpha) * h


def compute_results(run, cell, job, seed=0):
    """Return outputs, last states and gradients, from a copy of the cell because some cells change themselves."""
    cell = copy.deepcopy(cell)
    torch.manual_seed(seed)
    random.seed(seed)
    y, last = run(cell, ScanJob(job.x.clone(), tuple(s.clone() for s in job.state), job.lengths))
    gradients = torch.autograd.grad(y.square().sum() + sum(s.sum() for s in last), list(cell.parameters()),
                                    allow_unused=True)  # fmt: skip
    return [t for t in (y, *last, *gradients) if t is not None]


def why_not(cell, job):
    """Return why the kernel refuses; ask with a copy of the job, because the answer for the last job is remembered."""
    return kernel.why_not(cell, replace(job))


def make_job(cell, B=3, T=5):
    x = torch.randn(B, T, cell.input_size, dtype=torch.float64)
    return ScanJob(x, tuple(s + 0.1 for s in cell.start(x)))


def run_auto(cell, job):
    return seqloom.scan(cell, job.x, job.state)
