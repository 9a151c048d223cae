"""Words that reverse the meaning of a text, such as "not" and "but".

They only decide which of several steps a finding names first. Whether the prediction turns there is measured with the
model itself: see `finding.py`.
"""

from __future__ import annotations

CONTRASTS = frozenset(  # what follows counts against what comes before
    (
        *("but", "however", "yet", "though", "although", "nevertheless", "nonetheless", "still", "whereas", "except"),
        *("aber", "jedoch", "doch", "dennoch", "trotzdem", "sondern", "allerdings"),
        *("mais", "pourtant", "cependant", "toutefois", "néanmoins"),
        *("pero", "aunque", "sino", "embargo", "però", "tuttavia", "mas", "porém"),
        *("但", "但是", "然而", "可是", "不过", "却"),
    )
)
NEGATIONS = frozenset(  # what follows, or the verb before it, means the opposite
    (
        *("not", "no", "never", "nothing", "nobody", "neither", "nor", "without", "hardly", "cannot"),
        *("nicht", "kein", "keine", "keinen", "nie", "niemals", "ohne"),
        *("pas", "jamais", "sans", "aucun", "aucune", "nunca", "sin", "ni", "non", "mai", "senza", "não", "sem"),
        *("不", "没", "没有", "无", "别"),
    )
)


def is_contrast(word: str) -> bool:
    """Return whether a word contrasts what follows with what precedes it."""
    return word.lower() in CONTRASTS


def is_negation(word: str) -> bool:
    """Return whether a word is a negation: one of the list, or an English verb with n't."""
    word = word.lower().replace("\u2019", "'")
    return word in NEGATIONS or word.endswith("n't")
