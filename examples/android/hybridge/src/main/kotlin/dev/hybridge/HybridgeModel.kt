package dev.hybridge

import java.io.File

/** Lengths in tokens. draftLen: most draft tokens of the drafter inside the model, 0 without one. */
public data class ModelInfo(
    val maxSeqLen: Int,
    val vocabSize: Int,
    val prefillChunk: Int,
    val verifyLen: Int,
    val snapshotSlots: Int,
    val draftLen: Int,
)

/**
 * What replaying golden steps found; errors of logits as shares of the largest one. sameBits: all steps answered the same bits as
 * where the model was exported.
 */
public data class Validation(
    val steps: Int,
    val worst: Double,
    val tolerance: Double,
    val sameBits: Boolean,
)

/** An artifact's `model.pte`, mapped; its sessions share the weights and keep them as long as they need them. */
public class HybridgeModel internal constructor(internal val handle: Long, context: Int? = null) : AutoCloseable {
    /**
     * Opens a program without its folder; [Artifact.model] is one with pictures.
     *
     * The file must be one of the file system's: copy an asset into `context.filesDir` first.
     *
     * @param context most tokens of a text, up to what the program holds, which is the default.
     * @throws HybridgeException with [Status.UNREADABLE_FILE], [Status.INVALID_ARTIFACT] or [Status.MISSING_OPERATOR], and
     * [Status.INVALID_ARGUMENT] for a context that the program does not hold.
     */
    public constructor(file: File, context: Int? = null) : this(
        LongArray(1).also { made -> expectOk { Native.modelOpen(terminated("the path", file.path), made) } }[0],
        context,
    )

    public val info: ModelInfo
    /** The tokens after which a generation ends. */
    public val eosIds: Set<Long> = filled { ids, count -> Native.modelEosIds(handle, ids, count) }.toSet()

    init {
        if (context != null) {
            try {
                expectOk { Native.modelLimit(handle, context.toLong()) }
            } catch (refused: HybridgeException) {
                Native.modelClose(handle)
                throw refused
            }
        }
        val found = LongArray(6)
        expectOk { Native.modelInfo(handle, found) }
        val (maxSeqLen, vocabSize, prefillChunk, verifyLen, snapshotSlots) = found.map { it.toInt() }
        info = ModelInfo(maxSeqLen, vocabSize, prefillChunk, verifyLen, snapshotSlots, draftLen = found[5].toInt())
    }

    /**
     * Replays the steps that the export stored with the logits of the eager model. path: of an artifact's golden.json. Throws
     * INVALID_ARTIFACT for a damaged file, an error above the tolerance, or other bits than there must be.
     */
    public fun validate(path: String): Validation {
        val counts = LongArray(2)
        val errors = DoubleArray(2)
        expectOk { Native.validate(handle, path.toByteArray(), counts, errors) }
        return Validation(counts[0].toInt(), errors[0], errors[1], sameBits = counts[1] != 0L)
    }

    /**
     * Lets sessions and chats that are opened from now on read prompts of [tokens] and more by the accelerator that the model
     * was exported for; 0, the default, for as many as its export says.
     */
    public fun delegateFrom(tokens: Int) {
        expectOk { Native.delegateFrom(handle, tokens.toLong()) }
    }

    /**
     * Lets sessions and chats that are opened from now on continue only from a state whose tokens were read by the method, the
     * accelerator's or the CPU's, that would read them now. What they do not continue from is read again, and
     * [HybridgeSession.resume] and [HybridgeSession.load] throw [Status.UNSUPPORTED].
     */
    public fun strictReuse(wanted: Boolean) {
        expectOk { Native.strictReuse(handle, wanted) }
    }

    /** Returns an empty state over the weights; any number of them may be open. */
    public fun openSession(): HybridgeSession {
        val session = LongArray(1)
        expectOk { Native.sessionOpen(handle, session) }
        return HybridgeSession(session[0], info)
    }

    /** May come before the sessions'; a second one does nothing. */
    override fun close() {
        Native.modelClose(handle) // which refuses a handle that is closed
    }

    public companion object {
        /** hybridge's version. */
        public val version: String get() = Native.version()

        /**
         * Lets all sessions compute on [count] threads, up to 1024; 0: one for each fast core, as it is where nobody chooses.
         * Call it before a model is opened.
         */
        public fun setThreads(count: Int) {
            expectOk { Native.setThreads(count) }
        }
    }
}
