package dev.hybridge

/**
 * A state in memory that any session of its model goes on from, whatever came since: [HybridgeSession.checkpoint] makes one, and
 * [HybridgeSession.resume] goes back to it. It may be closed after its session and its model.
 */
public class Checkpoint internal constructor(internal val handle: Long) : AutoCloseable {
    /** The tokens of its text. */
    public val length: Int

    /** Those of its own: it shares the rest with the session's checkpoint before, where that is open. */
    public val bytes: Long

    init {
        val kept = LongArray(2)
        expectOk { Native.checkpointInfo(handle, kept) }
        length = kept[0].toInt()
        bytes = kept[1]
    }

    /** Waits for what runs in a session of the model; a second one does nothing. */
    override fun close() {
        Native.checkpointClose(handle) // which refuses a handle that is closed
    }
}

/**
 * Checkpoints of at most so many [bytes] by their texts, for [HybridgeSession.bringTo] of all sessions of [model]; what was used
 * least recently goes first.
 */
public class PrefixCache(model: HybridgeModel, bytes: Long) : AutoCloseable {
    internal val handle = LongArray(1).also { made -> expectOk { Native.cacheOpen(model.handle, bytes, made) } }[0]

    /** A second one does nothing. */
    override fun close() {
        Native.cacheClose(handle) // which refuses a handle that is closed
    }
}
