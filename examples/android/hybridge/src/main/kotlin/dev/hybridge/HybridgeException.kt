package dev.hybridge

/** hybridge_status of hybridge.h, in its order. */
public enum class Status {
    OK,
    INVALID_ARGUMENT,
    INVALID_HANDLE,
    BUSY,
    NO_ROOM,
    INVALID_STATE,
    INVALID_ARTIFACT,
    UNREADABLE_FILE,
    MISSING_OPERATOR,
    OUT_OF_MEMORY,
    INTERNAL,
    CANCELLED,
    NOT_FINITE,
    BROKEN_STATE,
    PROGRAM_FAILED,
    INVALID_TOKEN,
    INVALID_COMMIT,
    INVALID_SLOT,
    INVALID_DRAFTER,
    INVALID_PICTURE,
    INVALID_GRAMMAR,
    INVALID_TEMPLATE,
    INVALID_SAVED_STATE,
    UNWRITABLE_FILE,
    OTHER_MODEL,
    UNSUPPORTED,
    CALLBACK_FAILED,
    ;

    internal companion object {
        fun of(code: Int): Status = entries.getOrElse(code) { INTERNAL }
    }
}

/**
 * A refused call, with a message that says what is wrong and what to do. The session's state is as it was before it; a
 * generation keeps the tokens that it had given. After a call that
 * failed in the middle and could not be undone, others are refused with BROKEN_STATE until the session is reset, or a state is
 * restored, resumed or loaded.
 */
public class HybridgeException(public val status: Status, message: String) : RuntimeException("$message ($status)")
