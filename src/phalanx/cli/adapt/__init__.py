"""``phalanx adapt``: the diff that makes an adopted script an explicit one."""
