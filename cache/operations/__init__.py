"""Operations on state that a runtime may do better than core operators: attention, rows, rings, snapshot slots."""
