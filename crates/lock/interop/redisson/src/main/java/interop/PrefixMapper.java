package interop;

import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import org.redisson.config.SingleServerConfig;

/** Has Redisson put a prefix in front of every name: its NameMapper, which moved between packages. */
final class PrefixMapper {
    private PrefixMapper() {}

    static void install(SingleServerConfig server, String prefix) throws ReflectiveOperationException {
        for (Method setter : SingleServerConfig.class.getMethods()) {
            if (setter.getName().equals("setNameMapper")) {
                Class<?> mapper = setter.getParameterTypes()[0];
                setter.invoke(server, Proxy.newProxyInstance(
                        mapper.getClassLoader(),
                        new Class<?>[] {mapper},
                        (proxy, method, names) -> mapped(method.getName(), prefix, (String) names[0])));
                return;
            }
        }
        throw new NoSuchMethodException("setNameMapper");
    }

    private static String mapped(String direction, String prefix, String name) {
        if (name == null) {
            return null;
        }
        return direction.equals("map") ? prefix + name : name.substring(prefix.length());
    }
}
