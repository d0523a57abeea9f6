package dev.hybridge

import java.io.File
import java.nio.file.Files
import java.security.MessageDigest

/**
 * The native libraries in a jar that scripts/pack-jar made, for a JVM on a computer.
 *
 * Beside them is a list: the version, and SHA-256 and name of each library, the one for JNI last. They are written into a new folder
 * that only this user may read, loaded, and removed again: the process keeps what it has mapped.
 */
internal object Bundled {
    private const val LOADED = "dev.hybridge.loaded" // of this process: two class loaders may each have the classes

    /** Returns false if there are no libraries for this platform here. */
    fun load(): Boolean {
        val arch = System.getProperty("os.arch").let { if (it == "amd64") "x86_64" else it }
        val place = "native/${System.getProperty("os.name").lowercase()}-$arch"
        val list = Bundled::class.java.getResource("$place/libraries.txt")?.readText() ?: return false
        val (version, libraries) = list.trim().lines().let { it[0] to it.drop(1).map { line -> line.split(" ") } }
        synchronized(System.getProperties()) {
            val loaded = System.getProperty(LOADED)
            if (loaded != null && loaded != version) {
                val words = "this process has the libraries of hybridge $loaded, and these classes are $version: use one version"
                throw UnsatisfiedLinkError(words)
            }
            // What a second copy needs beside its own JNI library is found by name among what the process has.
            load(place, if (loaded == null) libraries else libraries.takeLast(1))
            System.setProperty(LOADED, version)
        }
        return true
    }

    private fun load(place: String, libraries: List<List<String>>) {
        val folder = Files.createTempDirectory("hybridge").toFile()
        try {
            for ((hash, name) in libraries) {
                val bytes = Bundled::class.java.getResourceAsStream("$place/$name")?.use { it.readBytes() }
                if (bytes == null || sha256(bytes) != hash) {
                    throw UnsatisfiedLinkError("$name is damaged in the jar of hybridge: get it again")
                }
                File(folder, name).writeBytes(bytes)
            }
            System.load(File(folder, libraries.last()[1]).path)
        } finally {
            folder.deleteRecursively()
        }
    }

    private fun sha256(bytes: ByteArray): String =
        MessageDigest.getInstance("SHA-256").digest(bytes).joinToString("") { "%02x".format(it) }
}
