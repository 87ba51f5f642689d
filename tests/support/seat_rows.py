"""Tables of requests by seat as the kernels at a step's ends take them, in every state that a step may find them in."""

from __future__ import annotations

import torch

from paceline_kernels.seat_tables import SeatTables

PAGE, LIMIT, SLACK = 8, 61, 9
"""A context that ends inside a page."""


def tables_of(lengths: list[int], device: str, *, limit: int = LIMIT, num_pages: int | None = None) -> SeatTables:
    """Of requests in seats 1, 2 ..., each with pages, texts and states of its own; the dummy's numbers are 0."""
    num_seats, columns = 1 + len(lengths), num_pages or -(-limit // PAGE)
    pages = torch.arange(num_seats * columns).view(num_seats, columns).flip(1) + 1
    pages[0] = 0
    for seat, length in enumerate(lengths, 1):
        pages[seat, length // PAGE + 2 :] = 0
    return SeatTables(
        history=torch.randint(0, 1 << 40, (num_seats, limit + SLACK)).to(device),
        page_table=pages.to(device),
        lengths=torch.tensor([0, *lengths], device=device),
        replay=torch.tensor([0, *(min(length, 1 + 2 * seat % 9) for seat, length in enumerate(lengths))], device=device),
        state_slots=torch.tensor([0, *(40 + seat for seat in range(len(lengths)))], device=device),
        max_model_len=limit,
        page_size=PAGE,
    )
