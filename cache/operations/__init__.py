"""Operations on state that a runtime may do better than core operators: windows, rings, rows, recurrences."""
