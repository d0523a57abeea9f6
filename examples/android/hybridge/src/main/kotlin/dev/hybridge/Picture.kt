package dev.hybridge

/**
 * A picture for the texts of an artifact's sessions and chats, of [Artifact.picture]: encoded when it is first read, and once as
 * long as it is open. A chat keeps its messages' pictures open by itself.
 */
public class Picture internal constructor(internal val handle: Long) : AutoCloseable {
    /**
     * What stands for it among the tokens of a prompt, all of it together: a number below 0 for each row that it takes, made of
     * its pixels, and tokens around them.
     */
    public val ids: LongArray = filled { ids, count -> Native.pictureIds(handle, ids, count) }

    /** How often its parts were encoded, all together. */
    public val encodings: Int
        get() = LongArray(2).also { counts -> expectOk { Native.pictureIds(handle, null, counts) } }[1].toInt()

    /** A text that was read needs it no more; a second one does nothing. */
    override fun close() {
        Native.pictureClose(handle) // which refuses a handle that is closed
    }
}
