"""transformers' chat rendering, for comparison."""

from __future__ import annotations

from typing import Any

import pytest
from template_chats import TOKENS


@pytest.fixture(scope="session")
def peer() -> Any:
    """transformers' tokenizer class over a vocabulary of one word: its apply_chat_template needs no real one."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"<UNK>": 0}, "<UNK>")), **TOKENS)
