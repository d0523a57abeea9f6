// The jar of scripts/pack-jar in class loaders of one process: java -cp JARS Copies.java JAR [OTHER-JAR]

import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Path;

public class Copies {
    public static void main(String[] jars) throws Exception {
        for (String jar : new String[] {jars[0], jars[jars.length - 1]}) {
            URL[] place = {Path.of(jar).toUri().toURL()};
            Class<?> copy = new URLClassLoader(place, Copies.class.getClassLoader()).loadClass("dev.hybridge.Native");
            try {
                System.out.println(copy.getMethod("version").invoke(null));
            } catch (ReflectiveOperationException | LinkageError error) {
                Throwable said = error;
                while (said.getCause() != null) said = said.getCause();
                System.out.println(said.getMessage());
            }
        }
    }
}
